"""Opens folders with 8-bit weights that `hrm_train export --to hf` has written, and compares their logits with ours.

    hf_8bit_check.py FOLDER ...

FOLDER/model is the export, FOLDER/reference.pt holds ids and logits. Prints "compressed-tensors: FOLDER" for each that
agrees, or "skipped: ..." where the libraries cannot be imported.
"""
import pathlib
import sys

import torch

try:
    import compressed_tensors  # noqa: F401
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)

for name in sys.argv[1:]:
    folder = pathlib.Path(name)
    reference = torch.load(folder / "reference.pt")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(reference["ids"]).logits
    torch.testing.assert_close(logits, reference["logits"], rtol=2e-4, atol=2e-5)
    print(f"compressed-tensors: {folder}")
