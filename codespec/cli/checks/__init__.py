"""What `codespec doctor` looks at, one file a subject; each check returns findings and raises nothing a user causes."""
