"""The language server: the editor's side of codespec. Knows editors and the daemon's HTTP interface, never torch."""
