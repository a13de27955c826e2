// The manifest: every key and every button leads to a command that there is, and the gallery gets what it asks for.
import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

interface Manifest {
  readonly version: string;
  readonly icon: string;
  readonly license: string;
  readonly categories: readonly string[];
  readonly keywords: readonly string[];
  readonly galleryBanner: { readonly color: string };
  readonly extensionKind: readonly string[];
  readonly contributes: {
    readonly commands: readonly { command: string; title: string }[];
    readonly keybindings: readonly { command: string; key: string; when: string }[];
    readonly menus: Readonly<Record<string, readonly { command: string }[]>>;
    readonly configuration: { readonly properties: Readonly<Record<string, { scope: string }>> };
    readonly walkthroughs: readonly { steps: readonly Step[] }[];
  };
  readonly capabilities: { readonly untrustedWorkspaces: { readonly restrictedConfigurations: readonly string[] } };
}
interface Step {
  readonly id: string;
  readonly description: string;
  readonly media: { readonly markdown?: string; readonly image?: string };
  readonly completionEvents: readonly string[];
}

const manifest = JSON.parse(readFileSync("package.json", "utf8")) as Manifest;
const { contributes } = manifest;
const contributed = contributes.commands.map(({ command }) => command);

test("every command is registered, and nothing else is", () => {
  const sources = readdirSync("src").map((name) => readFileSync(`src/${name}`, "utf8"));
  const registered = sources.flatMap((text) => [...text.matchAll(/\bregister\(\s*"(\w+)"/g)].map(([, name]) => name));
  const ofVsCode = sources.flatMap((text) => [...text.matchAll(/^ {2}(\w+): "editor\./gm)].map(([, name]) => name));
  assert.deepEqual([...registered, ...ofVsCode].map((name) => `codespec.${name}`).sort(), [...contributed].sort());
});

test("keys, menus and the walkthrough's buttons lead to commands that are there", () => {
  const named = [...contributes.keybindings, ...Object.values(contributes.menus).flat()].map(({ command }) => command);
  const steps = contributes.walkthroughs.flatMap(({ steps }) => steps);
  const buttons = steps.flatMap(({ description }) => [...description.matchAll(/\(command:([\w.]+)\)/g)]);
  for (const name of [...named, ...buttons.map(([, name]) => name!)])
    assert.ok(contributed.includes(name) || /^(editor|workbench)\./.test(name), name);
  for (const { media } of steps) assert.ok(existsSync(media.markdown ?? media.image ?? ""), JSON.stringify(media));
});

test("the keys of what VS Code does itself go to it at once, not through another process", () => {
  const direct = contributes.keybindings.map(({ command }) => command).filter((name) => name.startsWith("editor."));
  const ours = readFileSync("src/commands.ts", "utf8").match(/editor\.action\.inlineSuggest\.accept\w+/g);
  assert.deepEqual(direct, ours);
});

test("the keys hold only while a suggestion is shown, and leave the list of completions its own", () => {
  for (const { command, when } of contributes.keybindings) {
    if (!/(?<!!)inlineSuggestionVisible/.test(when)) continue;
    assert.match(when, /codespec\.running/, command);
    if (/accept|dismiss/.test(command)) assert.match(when, /!suggestWidgetVisible/, command);
  }
});

test("the keys of a next edit leave lists, ghost text and snippets theirs", () => {
  const keys = contributes.keybindings.filter(({ when }) => when.startsWith("codespec.edit "));
  assert.deepEqual(
    keys.map(({ key }) => key),
    ["tab", "escape"],
  );
  for (const { when } of keys)
    for (const name of ["suggestWidgetVisible", "inlineSuggestionVisible", "inSnippetMode", "editorHasSelection"])
      assert.ok(when.includes(`!${name}`), name);
});

test("what says which programs run and where text goes is not taken from a workspace that is not trusted", () => {
  const { restrictedConfigurations } = manifest.capabilities.untrustedWorkspaces;
  const delicate = Object.entries(contributes.configuration.properties).filter(
    ([, { scope }]) => scope === "machine-overridable",
  );
  assert.deepEqual(delicate.map(([name]) => name).sort(), [...restrictedConfigurations].sort());
});

test("the gallery gets an icon, a banner, a licence, categories, and no address that is not ours", () => {
  const png = readFileSync(manifest.icon);
  assert.equal(png.subarray(1, 4).toString(), "PNG");
  assert.ok(png.readUInt32BE(16) >= 128 && png.readUInt32BE(16) === png.readUInt32BE(20));
  assert.match(manifest.galleryBanner.color, /^#[0-9a-f]{6}$/);
  assert.equal(manifest.license, "MIT");
  assert.ok(manifest.categories.length >= 1 && manifest.keywords.length <= 30);
  assert.deepEqual(manifest.extensionKind, ["workspace"]);
  assert.match(readFileSync("CHANGELOG.md", "utf8"), new RegExp(`^## ${manifest.version.replaceAll(".", "\\.")}\\b`, "m"));
  const text = readFileSync("package.json", "utf8");
  for (const [address] of text.matchAll(/https?:\/\/[^"`\s)]+/g)) assert.match(address, /^http:\/\/127\.0\.0\.1:/);
});
