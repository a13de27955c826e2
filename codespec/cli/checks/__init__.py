"""The checks of `codespec doctor`, one file per subject."""
