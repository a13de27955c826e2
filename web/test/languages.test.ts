import assert from "node:assert/strict";
import { test } from "node:test";
import { StreamLanguage } from "@codemirror/language";
import { classHighlighter, highlightTree } from "@lezer/highlight";
import { LANGUAGES, openSample } from "../src/languages.ts";

for (const language of LANGUAGES) {
  test(`the ${language.name} sample has colours`, () => {
    const { text } = openSample(language);
    const kinds = new Set<string>();
    const tree = StreamLanguage.define(language.mode).parser.parse(text);
    highlightTree(tree, classHighlighter, (_from, _to, classes) => {
      for (const kind of classes.split(" ")) kinds.add(kind);
    });
    assert.ok(kinds.has("tok-keyword") && kinds.size >= 4, [...kinds].join(" "));
  });
}
