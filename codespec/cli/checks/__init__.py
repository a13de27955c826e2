"""The checks of `codespec doctor`, one file per subject. Checks return findings; a user's mistake never raises."""
