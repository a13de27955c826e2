"""`codespec bench team`: many typists at one daemon, its replicas, or one in front of another server."""
