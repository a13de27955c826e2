/** The languages to try, with their grammars and sample files. `‸` in a sample is where the cursor begins. */

import { StreamLanguage, type StreamParser } from "@codemirror/language";
import { c, cpp, java } from "@codemirror/legacy-modes/mode/clike";
import { go } from "@codemirror/legacy-modes/mode/go";
import { javascript, typescript } from "@codemirror/legacy-modes/mode/javascript";
import { python } from "@codemirror/legacy-modes/mode/python";
import { rust } from "@codemirror/legacy-modes/mode/rust";
import type { Extension } from "@codemirror/state";
import cText from "../samples/c.txt";
import cppText from "../samples/cpp.txt";
import goText from "../samples/go.txt";
import javaText from "../samples/java.txt";
import javascriptText from "../samples/javascript.txt";
import pythonText from "../samples/python.txt";
import rustText from "../samples/rust.txt";
import typescriptText from "../samples/typescript.txt";

export interface Language {
  readonly id: string; // an editor's language id
  readonly name: string;
  readonly path: string;
  readonly indent: string;
  readonly sample: string;
  readonly mode: StreamParser<unknown>;
}

export const LANGUAGES: readonly Language[] = [
  { id: "python", name: "Python", path: "inventory.py", indent: "    ", sample: pythonText, mode: python },
  { id: "javascript", name: "JavaScript", path: "queue.js", indent: "  ", sample: javascriptText, mode: javascript },
  { id: "typescript", name: "TypeScript", path: "shapes.ts", indent: "  ", sample: typescriptText, mode: typescript },
  { id: "c", name: "C", path: "list.c", indent: "    ", sample: cText, mode: c },
  { id: "cpp", name: "C++", path: "matrix.cpp", indent: "    ", sample: cppText, mode: cpp },
  { id: "rust", name: "Rust", path: "stack.rs", indent: "    ", sample: rustText, mode: rust },
  { id: "go", name: "Go", path: "store.go", indent: "\t", sample: goText, mode: go },
  { id: "java", name: "Java", path: "Account.java", indent: "    ", sample: javaText, mode: java },
];

/** Colours and indentation of a language: a tokenizer of lines, a twentieth of a grammar's size. */
export function support(language: Language): Extension {
  return StreamLanguage.define(language.mode);
}

const CURSOR = "‸";

/** Returns a sample's text without its mark, and the mark's position. */
export function openSample(language: Language): { text: string; cursor: number } {
  const cursor = language.sample.indexOf(CURSOR);
  return { text: language.sample.replace(CURSOR, ""), cursor: cursor < 0 ? language.sample.length : cursor };
}
