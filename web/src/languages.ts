/** The languages to try, with their grammars and sample files. `‸` in a sample is where the cursor begins. */

import { cpp } from "@codemirror/lang-cpp";
import { go } from "@codemirror/lang-go";
import { java } from "@codemirror/lang-java";
import { javascript } from "@codemirror/lang-javascript";
import { python } from "@codemirror/lang-python";
import { rust } from "@codemirror/lang-rust";
import type { LanguageSupport } from "@codemirror/language";
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
  readonly support: () => LanguageSupport;
}

export const LANGUAGES: readonly Language[] = [
  { id: "python", name: "Python", path: "inventory.py", indent: "    ", sample: pythonText, support: python },
  { id: "javascript", name: "JavaScript", path: "queue.js", indent: "  ", sample: javascriptText, support: javascript },
  {
    id: "typescript",
    name: "TypeScript",
    path: "shapes.ts",
    indent: "  ",
    sample: typescriptText,
    support: () => javascript({ typescript: true }),
  },
  { id: "c", name: "C", path: "list.c", indent: "    ", sample: cText, support: cpp },
  { id: "cpp", name: "C++", path: "matrix.cpp", indent: "    ", sample: cppText, support: cpp },
  { id: "rust", name: "Rust", path: "stack.rs", indent: "    ", sample: rustText, support: rust },
  { id: "go", name: "Go", path: "store.go", indent: "\t", sample: goText, support: go },
  { id: "java", name: "Java", path: "Account.java", indent: "    ", sample: javaText, support: java },
];

const CURSOR = "‸";

/** Returns a sample's text without its mark, and the mark's position. */
export function openSample(language: Language): { text: string; cursor: number } {
  const cursor = language.sample.indexOf(CURSOR);
  return { text: language.sample.replace(CURSOR, ""), cursor: cursor < 0 ? language.sample.length : cursor };
}
