"""Jobs that exist: their records, listings, prices and MLflow runs."""
