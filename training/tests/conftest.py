"""Finds the package and the fixture model; keeps PyTorch to one thread so that timings are the same everywhere."""
import os
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "training"))
os.environ["COMPILE"] = "0"
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def fixture_dir():
    for folder in (ROOT / "tests/fixtures/qwen35-tiny-a", ROOT.parent / "shared/fixtures/qwen35-tiny-a"):
        if (folder / "config.json").exists():
            return str(folder)
    pytest.fail("fixture qwen35-tiny-a is neither in tests/fixtures nor in ../shared/fixtures")
