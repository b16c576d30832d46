// render.mjs dashboard INPUT.json OUT.png        Grafana's panels, drawn by dashboard.jsx
// render.mjs page URL SELECTOR HEIGHT OUT.png   the top of a web page, once an element that SELECTOR names is there
import { readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { build } from 'esbuild';
import puppeteer from 'puppeteer-core';

const here = dirname(fileURLToPath(import.meta.url));

async function withPage(width, height, work) {
  const browser = await puppeteer.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--hide-scrollbars', '--force-color-profile=srgb'],
    defaultViewport: { width, height },
  });
  try {
    const page = await browser.newPage();
    const errors = [];
    page.on('pageerror', (error) => errors.push(error));
    await work(page);
    if (errors.length) throw errors[0];
  } finally {
    await browser.close();
  }
}

// The panels draw in frames of their own after the elements are there.
const settle = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// Grafana's packages as CommonJS: their ES modules import CommonJS ones whose default esbuild and webpack read differently.
const grafanaAsCommonJs = {
  name: 'grafana-as-commonjs',
  setup(builder) {
    builder.onResolve({ filter: /^@grafana\// }, ({ path, importer, resolveDir, pluginData }) =>
      pluginData === 'resolved'
        ? undefined
        : builder.resolve(path, { kind: 'require-call', importer, resolveDir, pluginData: 'resolved' })
    );
  },
};

async function dashboard(inputFile, out) {
  const input = readFileSync(inputFile, 'utf8');
  const script = `${inputFile}.js`, html = `${inputFile}.html`;
  await build({
    entryPoints: [join(here, 'dashboard.jsx')],
    bundle: true,
    minify: true,
    format: 'iife',
    target: 'es2022',
    jsx: 'automatic',
    loader: { '.svg': 'dataurl', '.ttf': 'empty' },
    define: { 'process.env.NODE_ENV': '"production"' },
    plugins: [grafanaAsCommonJs],
    outfile: script,
    logLevel: 'error',
  });
  writeFileSync(html, '<!doctype html><body style="margin:0;background:#111217"><div id="root"></div>');
  await withPage(JSON.parse(input).width, 800, async (page) => {
    await page.goto(pathToFileURL(html)); // a file, not about:blank: the panels read localStorage
    await page.evaluate((text) => { window.input = JSON.parse(text); }, input);
    await page.addStyleTag({ path: script.replace(/\.js$/, '.css') });
    await page.addScriptTag({ path: script });
    const whole = await page.waitForSelector('#dashboard');
    await settle(1500);
    await whole.screenshot({ path: out });
  });
}

async function page(url, selector, height, out) {
  await withPage(1400, 700, async (shown) => {
    await shown.goto(url);
    await shown.waitForSelector(selector, { timeout: 120_000 });
    await settle(15_000);
    await shown.screenshot({ path: out, clip: { x: 0, y: 0, width: 1400, height: Number(height) } });
  });
}

const [kind, ...rest] = process.argv.slice(2);
await { dashboard, page }[kind](...rest);
