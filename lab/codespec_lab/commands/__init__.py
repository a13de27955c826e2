"""Commands of the laboratory, which codespec finds by entry point (`bench`, `train`, `distill`), and the demo."""

MODULES = {
    "train": "codespec_lab.commands.train",
    "distill": "codespec_lab.commands.distill",
    "bench": "codespec_lab.commands.benches",
}
