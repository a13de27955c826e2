/** This machine, for the search for programs. */

import { accessSync, constants, existsSync, statSync } from "node:fs";
import { homedir } from "node:os";
import type { Machine } from "./find_server.ts";

export const machine: Machine = {
  windows: process.platform === "win32",
  home: homedir(),
  env: process.env,
  isProgram(path) {
    try {
      accessSync(path, constants.X_OK);
      return statSync(path).isFile();
    } catch {
      return false; // it does not exist, or we may not run it
    }
  },
  exists: existsSync,
};
