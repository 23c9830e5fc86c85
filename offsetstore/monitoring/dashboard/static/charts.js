// Draws the curves of <figure class="chart" data-series="[[seconds…],[values…],…]" data-labels="…" data-unit="…">.
"use strict";

const charts = new Map(); // by the figure's id
const COLOURS = ["--curve-1", "--curve-2"];

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function draw(figure) {
  const data = JSON.parse(figure.dataset.series);
  const before = charts.get(figure.id);
  if (before && before.root.isConnected) {
    before.setData(data);
    return;
  }
  const grid = { stroke: colour("--line"), width: 1 };
  const axis = { stroke: colour("--text"), grid, ticks: grid };
  const options = {
    width: figure.clientWidth,
    height: 180,
    legend: { show: false },
    cursor: { drag: { x: false, y: false } },
    scales: { y: { range: (_chart, low, high) => [0, Math.max(high, 1)] } },
    axes: [axis, { ...axis, size: 64 }],
    series: [
      {},
      ...JSON.parse(figure.dataset.labels).map((label, at) => ({
        label,
        stroke: colour(COLOURS[at]),
        width: 2,
        dash: at ? [6, 4] : undefined,
      })),
    ],
  };
  charts.set(figure.id, new uPlot(options, data, figure.querySelector(".plot")));
}

function drawAll() {
  document.querySelectorAll("figure.chart[data-series]").forEach(draw);
}

addEventListener("resize", () => {
  for (const [id, chart] of charts) chart.setSize({ width: document.getElementById(id).clientWidth, height: 180 });
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const chart of charts.values()) chart.destroy();
  charts.clear();
  drawAll();
});
document.addEventListener("refreshed", drawAll);
drawAll();
