"""The language server's package: the editor's side of codespec.

Knows editors and the daemon's HTTP interface. Does not know models: of codespec it may import `types`,
`errors` and `config` only, and never torch.
"""
