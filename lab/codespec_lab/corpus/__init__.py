"""Source texts: where they come from, which of them are held out, and what is cut out of those to be filled in."""
