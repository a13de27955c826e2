"""What must never leave the machine: files that git or the user excludes, and text that holds secrets."""
