"""The open trainer of fine-tuning recipes: it trains the configuration that the published image would."""
