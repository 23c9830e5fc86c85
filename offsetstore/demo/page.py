"""The report's page: one file that loads no others, in light and dark colours."""

from __future__ import annotations

from string import Template
from typing import Final

PAGE: Final = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root {
  color-scheme: light dark;
  --page: #f6f6f3; --card: #fcfcfb; --ink: #0b0b0b; --ink-2: #52514e; --ink-3: #7a7974;
  --grid: #e6e5df; --axis: #bcbbb3; --rim: rgba(11, 11, 11, .10);
  --ours: #2a78d6; --theirs: #eb6834; --good: #0a7d0a; --bad: #c52f2f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f0f0e; --card: #1a1a19; --ink: #fff; --ink-2: #c3c2b7; --ink-3: #94938b;
    --grid: #2b2b29; --axis: #4a4a46; --rim: rgba(255, 255, 255, .10);
    --ours: #3987e5; --theirs: #e2703e; --good: #3fbf3f; --bad: #f06a6a;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 8px; letter-spacing: -.01em; }
h2 { font-size: 16px; margin: 0; }
p { color: var(--ink-2); max-width: 100ch; margin: 0 0 24px; }
section { background: var(--card); border: 1px solid var(--rim); border-radius: 12px; }
section { padding: 20px 24px; margin: 0 0 16px; }
.head { display: flex; flex-wrap: wrap; gap: 4px 12px; align-items: baseline; margin-bottom: 4px; }
.head span { color: var(--ink-2); }
.head i { width: 12px; height: 12px; border-radius: 3px; background: var(--series); align-self: center; }
.offsetstore { --series: var(--ours); }
.at_least_once { --series: var(--theirs); }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, -apple-system, sans-serif; }
svg .line { fill: none; stroke: var(--series); stroke-width: 2; stroke-linejoin: round; }
svg .area { fill: var(--series); opacity: .10; }
svg .end { fill: var(--series); stroke: var(--card); stroke-width: 2; }
svg .grid { stroke: var(--grid); }
svg .axis { stroke: var(--axis); }
svg .produced { stroke: var(--ink-2); stroke-dasharray: 2 4; }
svg .tick { fill: var(--ink-3); font-size: 12px; font-weight: 400; font-variant-numeric: tabular-nums; }
svg .label, svg .over { paint-order: stroke; stroke: var(--card); stroke-width: 6px; stroke-linejoin: round; }
svg .label { fill: var(--ink); font-size: 15px; font-weight: 600; font-variant-numeric: tabular-nums; }
svg .kill line { stroke: var(--ink-2); stroke-dasharray: 4 3; }
svg .kill circle { fill: var(--ink); }
svg .kill text { fill: var(--card); font-size: 12px; font-weight: 600; }
svg .kill rect { fill: transparent; }
svg .kill:hover line { stroke: var(--ink); stroke-width: 2; stroke-dasharray: none; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 7px 12px 7px 0; border-bottom: 1px solid var(--grid); }
th { color: var(--ink-2); font-weight: 500; }
.kills td, .kills th { white-space: nowrap; padding-right: 20px; }
tr:last-child td, tr:last-child th { border-bottom: 0; }
.number { text-align: right; }
.good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
small { color: var(--ink-3); }
</style>
</head>
<body><main>
<h1>$title</h1>
<p>$paragraph</p>
$charts
<section><div class="head"><h2>Compared with the CSV</h2></div><div class="scroll">$findings</div></section>
<section><div class="head"><h2>The kills</h2></div><div class="scroll">$kills</div></section>
<small>$footer</small>
</main></body>
</html>
""")
