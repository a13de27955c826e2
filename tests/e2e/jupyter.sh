#!/usr/bin/env bash
# JupyterLab in Chromium with codespec's plugin: ghost text in a notebook's cell appears and is accepted. Jupyter is
# installed into .e2e/jupyter, or the environment JUPYTER is used as it is. Screenshots lie in .out/e2e/jupyter.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$PWD/.out/e2e/jupyter
rm -rf "$out" && mkdir -p "$out"
notebooks=$(mktemp -d)  # elsewhere: git ignores .out, and what it ignores is not completed
trap 'rm -rf "$notebooks"' EXIT
if [ -z "${JUPYTER:-}" ]; then
  tests/e2e/install.sh page
  JUPYTER=$PWD/.e2e/jupyter
  [ -d "$JUPYTER" ] || python3 -m venv "$JUPYTER"
  "$JUPYTER/bin/pip" install --quiet jupyterlab . ./native ./weights ./plugins/jupyterlab
fi
cp tests/e2e/jupyter/areas.ipynb "$notebooks"
CODESPEC_MODEL=starter JUPYTER=$JUPYTER node tests/e2e/jupyter/jupyter.mjs "$out" "$notebooks"
