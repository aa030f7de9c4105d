"""python -m straw_training VERB ...: one verb per step of the recipe."""
import importlib
import sys

VERBS = ("prepare", "pretrain", "generate", "train_mtp", "train_dflash", "train_weaver", "export", "evaluate", "drafters_run")

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in VERBS:
        sys.exit(f"usage: python -m straw_training {{{','.join(VERBS)}}} ... (each takes --help)")
    importlib.import_module(f"straw_training.{sys.argv[1]}").main(sys.argv[2:])
