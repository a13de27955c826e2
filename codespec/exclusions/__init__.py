"""Rules for content that is not completed or sent: ignored files, secret files and secret lines of a text."""
