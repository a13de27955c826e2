"""`codespec bench quality`: how often a target fills a gap with the text that was cut out, or with code that passes."""
