"""What the user accepted, kept for each repository: as a source of drafts, and, if wanted, as places to distil from."""
