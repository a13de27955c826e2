"""What can be said of a target and a drafter from their files and some text, before any model is loaded. No torch."""
