"""`codespec bench edits`: suggested edits compared with what the next release of a package contains."""
