"""`codespec bench typing`: a typist in held-out files, through the real language server and real daemons."""
