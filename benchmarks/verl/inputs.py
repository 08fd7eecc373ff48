"""Write a tiny random Llama with a tokenizer, and conversations as verl reads them: `inputs.py FOLDER`.

verl's environment runs it, so that the model has the format of its release of transformers.
"""

import sys
from pathlib import Path

from launcher.runtime.finetune.rehearsal_data import VOCABULARY, write_rehearsal_data

SEED = 7
NUM_SAMPLES = 64


def main() -> None:
    """Write `model/` and `train.parquet`."""
    import pandas  # the constants are read without these
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = Path(sys.argv[1])
    data = write_rehearsal_data(folder, "sft", SEED, NUM_SAMPLES)
    pandas.read_json(data.train_file, lines=True).to_parquet(folder / "train.parquet")
    model = data.tokenizer_folder.rename(folder / "model")
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(model)


if __name__ == "__main__":
    main()
