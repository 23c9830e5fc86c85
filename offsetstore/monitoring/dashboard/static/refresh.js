// Keeps an open page up to date: asks for it every five seconds, and changes what has changed and nothing else, so that
// focus, selection and scroll stay. Regions that change are marked with data-live and an id, their rows with data-key.
"use strict";

const INTERVAL = 5000;
const SILENT = 15000; // from when on the page says that it has no answer
const TIMEOUT = 10000;

const served = new WeakMap(); // each region, row and cell as the server sent it: ages have been filled in since
let tag = null;
let answered = Date.now();
let ahead = 0; // milliseconds by which the server's clock is ahead
let typed = 0;

function remember(node) {
  served.set(node, node.outerHTML);
  if (node.matches("[data-live], [data-key]")) for (const child of node.children) remember(child);
}

function same(node, fresh) {
  return served.get(node) === fresh.outerHTML;
}

function replace(node, fresh) {
  const next = document.importNode(fresh, true);
  for (const one of [next, ...next.querySelectorAll("[data-live]")]) remember(one);
  node.replaceWith(next);
  return next;
}

// Cells of a row, or whatever else has as many parts as before.
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
    if (!row) {
      row = document.importNode(next, true);
      remember(row);
    } else if (!same(row, next)) row = updateParts(row, next);
    if (region.children[at] !== row) region.insertBefore(row, region.children[at] ?? null);
  });
  for (const row of old.values()) row.remove();
  served.set(region, fresh.outerHTML);
}

function update(fresh) {
  const focused = document.activeElement;
  const row = focused.closest("[data-key]")?.dataset.key;
  const href = focused.getAttribute("href");
  const isNew = [...fresh.querySelectorAll("[data-live]")].some((one) => !document.getElementById(one.id));
  if (isNew) replace(document.querySelector("main"), fresh.querySelector("main"));
  for (const region of document.querySelectorAll("[data-live]")) {
    const next = fresh.getElementById(region.id);
    if (!next || same(region, next)) continue;
    if (next.querySelector(":scope > [data-key]") && region.tagName === next.tagName) updateRows(region, next);
    else replace(region, next);
  }
  if (document.activeElement !== focused) {
    const rows = [...document.querySelectorAll("[data-key]")].filter((one) => one.dataset.key === row);
    const links = [...(rows[0] ?? document).querySelectorAll("[href]")];
    (focused.isConnected ? focused : links.find((one) => one.getAttribute("href") === href))?.focus({ preventScroll: true });
  }
  document.dispatchEvent(new Event("refreshed"));
}

async function poll() {
  if (document.hidden || Date.now() - typed < 3000) return;
  try {
    const headers = { Accept: "text/html", ...(tag && { "If-None-Match": tag }) };
    const answer = await fetch(location.href, { headers, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT) });
    if (answer.redirected) location.reload(); // to the page where one signs in
    if (!answer.ok && answer.status !== 304) return;
    answered = Date.now();
    ahead = (Date.parse(answer.headers.get("Date")) || answered) - answered;
    if (answer.status === 304) return;
    tag = answer.headers.get("ETag");
    update(new DOMParser().parseFromString(await answer.text(), "text/html"));
  } catch {
    // The page says so itself, once it lasts.
  } finally {
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
  const silent = Date.now() - answered;
  document.getElementById("silence").textContent =
    silent < SILENT ? "" : `No answer from the dashboard for ${words(Math.floor(silent / SILENT) * SILENT)}`;
}

document.querySelectorAll("[data-live]").forEach(remember);
document.addEventListener("input", () => (typed = Date.now()));
document.addEventListener("visibilitychange", poll);
setInterval(poll, INTERVAL);
setInterval(age, 1000);
age();
