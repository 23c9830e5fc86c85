// Keeps an open page up to date: asks for it every five seconds, and changes what has changed and nothing else, so that
// focus, selection and scroll stay. Regions that change are marked with data-live and an id, their rows with data-key.
"use strict";

const SILENT = 15000; // milliseconds, from when on the page says that it has no answer
const served = new WeakMap(); // each region, row and cell as the server sent it: ages have been filled in since
let tag = null;
let failing = null; // since when the server has not sent the page
let why = null; // what it sent instead
let asking = false; // one request at a time: no older page replaces a newer one
let ahead = 0; // milliseconds by which the server's clock is ahead
let typed = 0;

function remember(node) {
  served.set(node, node.outerHTML);
  if (node.matches("[data-live], [data-key]")) for (const child of node.children) remember(child);
}

const same = (node, fresh) => served.get(node) === fresh.outerHTML;

function replace(node, fresh) {
  const next = document.importNode(fresh, true);
  for (const region of [next, ...next.querySelectorAll("[data-live]")]) remember(region);
  node.replaceWith(next);
  return next;
}

// Cells of a row, or what else has as many parts as before.
function updateParts(node, fresh) {
  if (node.tagName !== fresh.tagName || node.children.length !== fresh.children.length || !node.children.length)
    return replace(node, fresh);
  [...node.children].forEach((part, at) => {
    if (!same(part, fresh.children[at])) replace(part, fresh.children[at]);
  });
  for (const { name } of [...node.attributes]) if (!fresh.hasAttribute(name)) node.removeAttribute(name);
  for (const { name, value } of fresh.attributes) node.setAttribute(name, value);
  served.set(node, fresh.outerHTML);
  return node;
}

function updateRows(region, fresh) {
  const old = new Map([...region.children].map((row) => [row.dataset.key, row]));
  [...fresh.children].forEach((next, at) => {
    let row = old.get(next.dataset.key);
    old.delete(next.dataset.key);
    if (!row) remember((row = document.importNode(next, true)));
    else if (!same(row, next)) row = updateParts(row, next);
    if (region.children[at] !== row) region.insertBefore(row, region.children[at] ?? null);
  });
  for (const row of old.values()) row.remove();
  served.set(region, fresh.outerHTML);
}

function update(fresh) {
  const focused = document.activeElement;
  const row = focused.closest("[data-key]")?.dataset.key;
  const href = focused.getAttribute("href");
  const regions = (of) => [...of.querySelectorAll("[data-live]")].map((region) => region.id).join();
  if (regions(document) !== regions(fresh)) replace(document.querySelector("main"), fresh.querySelector("main"));
  for (const region of document.querySelectorAll("[data-live]")) {
    const next = fresh.getElementById(region.id);
    if (!next || same(region, next)) continue;
    if (next.querySelector(":scope > [data-key]") && region.tagName === next.tagName) updateRows(region, next);
    else if (region.tagName === "DL") updateParts(region, next);
    else replace(region, next);
  }
  if (document.activeElement !== focused) {
    const place = [...document.querySelectorAll("[data-key]")].find((keyed) => keyed.dataset.key === row) ?? document;
    const links = [...place.querySelectorAll("[href]")];
    (focused.isConnected ? focused : links.find((link) => link.getAttribute("href") === href))?.focus({ preventScroll: true });
  }
  document.dispatchEvent(new Event("refreshed"));
}

async function poll() {
  if (asking || document.hidden || Date.now() - typed < 3000) return;
  asking = true;
  failing ??= Date.now();
  try {
    const headers = { Accept: "text/html", ...(tag && { "If-None-Match": tag }) };
    const answer = await fetch(location.href, { headers, cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (answer.redirected) return location.reload(); // to the login page
    ahead = (Date.parse(answer.headers.get("Date")) || Date.now()) - Date.now();
    const fresh = answer.status === 304 ? null : new DOMParser().parseFromString(await answer.text(), "text/html");
    why = answer.ok ? null : fresh?.querySelector("h1 + p")?.textContent;
    if (fresh && (!answer.ok || !fresh.getElementById("measured"))) return;
    if (fresh) update(fresh);
    tag = answer.headers.get("ETag");
    failing = null;
  } catch {
    why = null; // there was no answer
  } finally {
    asking = false;
    age();
  }
}

function words(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["m", 60]])
    if (seconds >= 2 * length) return `${Math.floor(seconds / length)}${unit}`;
  return `${seconds}s`;
}

function age() {
  for (const time of document.querySelectorAll("time[data-age]")) {
    const text = `${words(Date.now() + ahead - Date.parse(time.dateTime))} ago`;
    if (time.firstChild.data !== text) time.firstChild.data = text;
  }
  const silent = failing === null ? 0 : Math.floor((Date.now() - failing) / SILENT) * SILENT;
  document.getElementById("silence").textContent =
    silent === 0 ? "" : why ? `Not up to date for ${words(silent)}: ${why}` : `No answer from the dashboard for ${words(silent)}`;
}

document.querySelectorAll("[data-live]").forEach(remember);
document.addEventListener("input", () => (typed = Date.now()));
document.addEventListener("visibilitychange", () => poll((failing = null))); // hidden, it asked for nothing
setInterval(poll, 5000);
setInterval(age, 1000);
age();
