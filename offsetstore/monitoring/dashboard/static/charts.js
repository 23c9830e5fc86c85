// Draws the curves of <figure class="chart">. Its caption has the data (data-series="[[seconds…],[values…]]") and is
// replaced when they change; the plot beside it stays, and so does the value under the pointer.
"use strict";

const HEIGHT = 180;
const charts = new Map(); // by the figure's id
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 });

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// A time on the axis, in UTC, as exactly as the ticks are apart.
function tick(seconds, apart) {
  const iso = new Date(seconds * 1000).toISOString();
  if (apart >= 86400 || seconds % 86400 === 0) return iso.slice(5, 10);
  return apart < 60 ? iso.slice(11, 19) : iso.slice(11, 16);
}

function draw(figure) {
  const { series, label } = figure.querySelector("[data-series]").dataset;
  const data = JSON.parse(series);
  const before = charts.get(figure.id);
  if (before?.root.isConnected) {
    before.setData(data);
    return;
  }
  before?.destroy(); // the page's main part was replaced
  charts.delete(figure.id);
  if (data[1].every((value) => value === null)) return; // the caption says so
  const grid = { stroke: colour("--line"), width: 1 };
  const axis = { stroke: colour("--text"), grid, ticks: grid };
  const options = {
    width: figure.clientWidth,
    height: HEIGHT,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    cursor: { drag: { x: false, y: false } },
    scales: { y: { range: (_chart, _low, high) => [0, high > 0 ? high * 1.05 : 1] } },
    axes: [
      { ...axis, values: (_chart, ticks, _axis, _space, apart) => ticks.map((seconds) => tick(seconds, apart)) },
      { ...axis, size: 56, values: (_chart, ticks) => ticks.map((value) => short.format(value)) },
    ],
    series: [
      { label: "UTC", value: "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" },
      { label, stroke: colour("--curve-1"), width: 2, value: (_chart, value) => (value == null ? "-" : short.format(value)) },
    ],
  };
  charts.set(figure.id, new uPlot(options, data, figure.querySelector(".plot")));
}

function drawAll() {
  document.querySelectorAll("figure.chart").forEach(draw);
}

addEventListener("resize", () => {
  for (const [id, chart] of charts) chart.setSize({ width: document.getElementById(id).clientWidth, height: HEIGHT });
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of charts.values()) chart.destroy();
  charts.clear();
  drawAll();
});
document.addEventListener("refreshed", drawAll);
drawAll();
