"""What `codespec doctor` looks at, one file a subject; a check returns findings and raises for no mistake of a user."""
