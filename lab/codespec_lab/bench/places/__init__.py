"""`codespec bench places`: what an editor shows at seeded places of packages, compared with the text that is there."""
