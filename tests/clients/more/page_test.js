// The web page, in Chromium, as a person uses it. With CALANDRA_PICTURES, a folder, it leaves pictures there to be looked at.

import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { after, test } from "node:test";
import { chromium } from "playwright-core";
import { answer, question, startServer, weather, weatherQuestion, weatherSchema } from "../server.js";

const server = await startServer();
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-quic"],
});
after(() => browser.close());

/** A page of a new browser that has been nowhere; all that it asks for must be the server's, and nothing may go wrong in it. */
async function open(options = {}, origin = server.origin) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 800 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(60000);
  const faults = [];
  page.on("request", (request) => {
    if (!request.url().startsWith(`${origin}/`) && !request.url().startsWith("data:")) faults.push(request.url());
  });
  page.on("console", (message) => {
    if (message.type() === "error") faults.push(message.text());
  });
  page.on("pageerror", (error) => faults.push(String(error)));
  await page.goto(origin);
  await page.locator("#model", { hasText: "austen-5m" }).or(page.locator("#status.bad")).waitFor();
  return { page, faults, close: () => context.close() };
}

async function picture(page, name) {
  if (!process.env.CALANDRA_PICTURES) return;
  mkdirSync(process.env.CALANDRA_PICTURES, { recursive: true });
  await page.screenshot({ path: join(process.env.CALANDRA_PICTURES, `${name}.png`) });
}

async function ask(page, text) {
  await page.fill("#prompt", text);
  await page.press("#prompt", "Enter");
}

/** Answer number i, the first unless told otherwise, once it has ended. */
async function answered(page, i = 0) {
  const article = page.locator("article.assistant").nth(i);
  await article.and(page.locator('[aria-busy="false"]')).waitFor();
  return article;
}

/** All requests of the page ask for so much more, or less, than it would. */
const askFor = (page, more) => page.route("**/v1/chat/completions", (route) =>
  route.continue({ postData: { ...route.request().postDataJSON(), ...more } }));

test("a question is answered as it is made, with its reasoning folded", async () => {
  const { page, faults, close } = await open();
  await page.fill("#temperature", "0");
  await page.evaluate(() => {
    window.seen = new Set();
    new MutationObserver(() => window.seen.add(document.querySelector("article.assistant .content")?.textContent))
      .observe(document.querySelector("#log"), { subtree: true, childList: true, characterData: true });
  });
  await ask(page, question);
  const article = await answered(page);
  assert.equal(await article.locator(".content").textContent(), answer);
  const seen = (await page.evaluate(() => [...window.seen])).filter(Boolean);
  assert.ok(seen.length > 3 && seen.every((text) => answer.startsWith(text)), JSON.stringify(seen));
  assert.match(await article.locator("footer").textContent(), /^20 tokens \(9 of reasoning\) · .*prompt 34/);
  const reasoning = article.locator(".reasoning .text");
  assert.equal(await reasoning.isVisible(), false);
  await article.locator("summary").click();
  assert.match(await reasoning.textContent(), /told me/);
  assert.equal(await reasoning.isVisible(), true);

  // The next question carries the conversation.
  await ask(page, "What is the secret number?");
  assert.match(await (await answered(page, 1)).locator(".content").textContent(), /4827/);
  await picture(page, "chat");
  await page.click("#new");
  assert.equal(await page.locator("article").count(), 0);
  assert.deepEqual(faults, []);
  await close();
});

test("Escape and the button stop an answer, on the server too, and what came stays", async () => {
  const { page, faults, close } = await open();
  await askFor(page, { ignore_eos: true, max_tokens: 20000 });
  for (const [i, stop] of [() => page.keyboard.press("Escape"), () => page.click("#stop")].entries()) {
    await server.endsWhatIsLeft(async () => {
      await ask(page, "Tell me about Bath.");
      await page.locator("article.assistant").nth(i).locator(".content:not(:empty)").waitFor();
      assert.equal(await page.textContent("#status"), "answering…");
      await stop();
    });
    const article = await answered(page, i);
    assert.match(await article.locator("footer").textContent(), /^stopped/);
    assert.notEqual(await article.locator(".content").textContent(), "");
    assert.equal(await page.isVisible("#send"), true);
  }
  assert.equal(await page.locator("article").count(), 4);
  assert.deepEqual(faults, []);
  await close();
});

test("a tool is called, and given its result", async () => {
  const { page, faults, close } = await open();
  await page.fill("#temperature", "0");
  await page.click("summary:has-text('Tools')");
  await page.fill("#tools", JSON.stringify([
    { type: "function", function: { name: "get_weather", description: "Get the current weather", parameters: weatherSchema } },
  ]));
  await ask(page, weatherQuestion);
  const call = (await answered(page)).locator(".call");
  assert.equal(await call.locator("h3").textContent(), "get_weather");
  assert.deepEqual(JSON.parse(await call.locator("pre").textContent()), { city: "Paris" });
  await picture(page, "tool-call");
  await call.locator("textarea").fill(JSON.stringify(weather));
  await page.click("#send");
  assert.match(await (await answered(page, 1)).locator(".content").textContent(), /21.*Paris/);
  await picture(page, "tool-result");
  assert.deepEqual(faults, []);
  await close();
});

test("settings outlive the page, and a wrong one is named", async () => {
  const { page, close } = await open();
  await page.fill("#temperature", "0");
  await page.fill("#system", "Be brief.");
  await page.selectOption("#thinking", "off");
  await page.press("#system", "Tab");
  await page.reload();
  assert.deepEqual(await page.evaluate(() => ["temperature", "system", "thinking"].map((id) => document.getElementById(id).value)),
    ["0", "Be brief.", "off"]);
  await ask(page, question);
  assert.equal(await (await answered(page)).locator(".reasoning").isVisible(), false);
  await page.click("summary:has-text('Tools')");
  await page.fill("#tools", "[{");
  await ask(page, question);
  await page.locator("#status.bad", { hasText: "Tools:" }).waitFor();
  assert.equal(await page.inputValue("#prompt"), question); // is not lost
  await close();
});

test("a request that is refused says why, and is not lost", async () => {
  const { page, close } = await open();
  await askFor(page, { temperature: "hot" });
  await ask(page, question);
  await page.locator("#status.bad", { hasText: "temperature: found \"hot\"" }).waitFor();
  assert.equal(await page.inputValue("#prompt"), question);
  assert.equal(await page.locator("article").count(), 0);
  await close();
});

test("the view of the server has its numbers", async () => {
  const drafting = await startServer("--draft-tokens", "2"); // however fast this machine is
  const { page, faults, close } = await open({}, drafting.origin);
  await askFor(page, { ignore_eos: true, max_tokens: 20000 });
  await page.click("summary:has-text('Server')");
  await ask(page, "Tell me about Bath.");
  const plot = (name) => page.locator("figure", { has: page.locator(".name", { hasText: new RegExp(`^${name}$`) }) });
  await plot("Running").locator("output", { hasText: /^1$/ }).waitFor();
  await plot("Drafts accepted").locator("output", { hasText: /^[1-9][0-9.]* %$/ }).waitFor();
  await plot("Tokens a step").locator("output", { hasText: /^[12]\.[0-9]$/ }).waitFor();
  await plot("Tokens/s made").locator("output", { hasText: /^[1-9]/ }).waitFor();
  await plot("Memory").locator("output", { hasText: /% of .* MiB$/ }).waitFor();
  await page.waitForTimeout(4000); // of a plot
  assert.ok((await plot("Running").locator("polyline").getAttribute("points")).split(" ").length >= 3);
  await picture(page, "server");
  await page.keyboard.press("Escape");
  await plot("Running").locator("output", { hasText: /^0$/ }).waitFor();
  assert.deepEqual(faults, []);
  await close();
});

test("a key is asked for, and kept until the tab is closed", async () => {
  const locked = await startServer("--api-key", "secret");
  const { page, close } = await open({}, locked.origin);
  await page.locator("#key").waitFor();
  await picture(page, "key");
  await page.fill("#key", "secret");
  await page.press("#key", "Enter");
  await page.locator("#model", { hasText: "austen-5m" }).waitFor();
  await page.reload();
  await page.locator("#model", { hasText: "austen-5m" }).waitFor();
  await page.fill("#temperature", "0");
  await ask(page, question);
  assert.equal(await (await answered(page)).locator(".content").textContent(), answer);
  await close();
});

for (const colorScheme of ["light", "dark"]) {
  test(`a phone shows all of it without scrolling sideways, ${colorScheme}`, async () => {
    const { page, faults, close } = await open({ viewport: { width: 375, height: 667 }, colorScheme, hasTouch: true, isMobile: true });
    const fits = async () => assert.equal(await page.evaluate(() => {
      const isWide = (element) => element.checkVisibility() && element.getBoundingClientRect().right > 375.5;
      const wide = [...document.querySelectorAll("body *")].filter(isWide).map((element) => element.outerHTML);
      return [document.documentElement.scrollWidth, document.querySelector("#log").scrollWidth, ...wide].join(" ");
    }), "375 375");
    await askFor(page, { max_tokens: 200 });
    await ask(page, `Repeat exactly: ${"Weymouth".repeat(12)}`);
    await answered(page);
    await fits();
    await picture(page, `phone-${colorScheme}`);
    const ground = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.equal(Number(/\d+/.exec(ground)[0]) > 128, colorScheme === "light", ground);
    await page.click("#toggle");
    await page.click("summary:has-text('Server')");
    await page.locator("figure output").first().waitFor();
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 375);
    await picture(page, `phone-settings-${colorScheme}`);
    assert.deepEqual(faults, []);
    await close();
  });
}

test("a wide screen in the dark", async () => {
  const { page, close } = await open({ colorScheme: "dark" });
  await ask(page, "Tell me about Bath.");
  await answered(page);
  await picture(page, "dark");
  await close();
});
