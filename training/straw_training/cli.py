"""Arguments that the drafter trainers share, and how they become a target and a source of batches."""
from safetensors.torch import load_file

from . import gdn
from .decode import compile_layers
from .load import device_of, load_target, log, marker_of
from .records import Live, Recorded, corpus_rows

WHY = "rows.safetensors of generate, or a folder of training records"


def add_source(parser):
    parser.add_argument("target", help="target directory in Hugging Face layout")
    parser.add_argument("source", help=WHY)
    parser.add_argument("--corpus", help="corpus.safetensors of prepare: also learn from the target's distribution on this text")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--steps", type=int, help="instead of --seconds")
    parser.add_argument("--blocks", type=int, default=3072, help="drafted blocks a step")
    parser.add_argument("--batch-tokens", type=int, default=49152, help="target tokens a step")


def open_source(a, taps):
    device = device_of()
    target, tokens = load_target(a.target, device)
    if not a.source.endswith(".safetensors"):
        return target, tokens, Recorded(a.source, device)
    gdn.setup(device, log)
    compile_layers()
    corpus = corpus_rows(load_file(a.corpus), marker_of(a.target), device) if a.corpus else None
    return target, tokens, Live(target, taps, load_file(a.source), device, corpus, a.batch_tokens)
