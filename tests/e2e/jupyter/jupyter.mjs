// JupyterLab with codespec's plugin in a real browser: what the page sends, the ghost text, and the accepted cell.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { join } from "node:path";
import { chromium } from "../../../web/node_modules/playwright-core/index.mjs";
import { serve } from "../daemons.mjs";

const [out, notebooks] = process.argv.slice(2);
const daemon = await serve(["--threads", "1"]);
await daemon.ready;

// Starts Jupyter on a free port; resolves with its address, token included.
function startJupyter() {
  const settings = `{'url': '${daemon.url}', 'startDaemon': False, 'invokedBudgetMs': 60000}`;
  const flags = ["--no-browser", "--port=0", "--allow-root", `--ServerApp.root_dir=${notebooks}`];
  const child = spawn(join(process.env.JUPYTER, "bin/jupyter"), ["lab", ...flags, `--Codespec.settings=${settings}`], {
    env: { ...process.env, XDG_STATE_HOME: daemon.folder, JUPYTER_CONFIG_DIR: out, JUPYTER_DATA_DIR: out },
    stdio: ["ignore", "ignore", "pipe"],
  });
  const address = new Promise((resolve, reject) => {
    const said = [];
    createInterface({ input: child.stderr }).on("line", (line) => {
      said.push(line);
      const found = /(http:\/\/127\.0\.0\.1:\d+)\/lab\?token=(\w+)/.exec(line);
      if (found) resolve({ url: found[1], token: found[2] });
    });
    child.once("exit", (code) => reject(new Error(`jupyter ended with ${code}:\n${said.join("\n")}`)));
  });
  return { child, address };
}

const jupyter = startJupyter();
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
try {
  const { url, token } = await jupyter.address;
  const page = await browser.newPage({ viewport: { width: 1000, height: 600 } });
  const sent = [];
  page.on("request", (request) => request.url().includes("codespec/complete") && sent.push(request.postDataJSON()));
  await page.goto(`${url}/lab/tree/areas.ipynb?token=${token}`, { timeout: 120_000 });
  const cell = page.locator(".jp-CodeCell .cm-content").nth(1);
  await cell.click({ timeout: 120_000 });
  await page.keyboard.press("Control+End");
  await page.keyboard.type(" ");
  const ghost = page.locator(".jp-GhostText");
  await ghost.first().waitFor({ state: "attached", timeout: 40_000 });
  const shown = (await ghost.allTextContents()).join("");
  await page.screenshot({ path: join(out, "ghost.png") });
  await page.keyboard.press("Tab");
  await page.waitForTimeout(1000); // the next suggestion may follow the accepted one
  const accepted = (await cell.locator(".cm-line").allTextContents()).join("");
  assert.ok(accepted.includes("    return " + shown.split("\n")[0]), `${JSON.stringify(accepted)} lacks ${JSON.stringify(shown)}`);
  await page.screenshot({ path: join(out, "accepted.png") });
  assert.ok(shown.trim(), "the ghost text is empty");
  const [{ path, language, above, active, below }] = sent.slice(-2);
  assert.deepEqual([path, language, active.kind], ["areas.ipynb", "python", "code"]);
  assert.deepEqual([above.map(({ kind }) => kind), below.map(({ text }) => text)], [["code", "markdown"], ["print(area_of_square_again(2))"]]);
  const stranger = await fetch(`${url}/codespec/complete`, { method: "POST", body: "{}" });
  assert.equal(stranger.status, 403, "without Jupyter's token nobody is answered");
  console.log(`jupyter: ghost text ${JSON.stringify(shown)} appeared and was accepted`);
} finally {
  await browser.close();
  jupyter.child.kill();
  await daemon.stop();
}
