"""`codespec bench step`: what a step costs against the memory's bandwidth, and exact against fast."""
