"""The style sheet of the page: one column on a phone, two on a screen, light and dark."""

STYLESHEET = """
:root {
  --ground: #ffffff; --panel: #f6f8fa; --ink: #1c2128; --muted: #57606a; --line: #d4dae0; --link: #1f6fbf;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #14181d; --panel: #1c2229; --ink: #e6eaee; --muted: #a3adb8; --line: #39424c; --link: #6cb2f5;
  }
}
* { box-sizing: border-box; }
html { font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
body {
  margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 70rem; background: var(--ground); color: var(--ink);
  overflow-wrap: anywhere;
}
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 0 0 .4rem; }
a { color: var(--link); }
nav ol { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; margin: 1rem 0; padding-left: 0; list-style: none; }
section { border-top: 1px solid var(--line); padding-top: 1.4rem; margin-top: 1.8rem; scroll-margin-top: .5rem; }
.reading { max-width: 50rem; margin: 0 0 1rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr)); gap: 1.6rem; }
figure { margin: 0; min-width: 0; max-width: 33rem; }
figure svg { display: block; width: 100%; height: auto; stroke-linejoin: round; stroke-linecap: butt; }
figcaption { color: var(--muted); font-size: .875rem; margin-top: .4rem; }
.absent { border: 1px dashed var(--line); border-radius: .4rem; padding: 1rem; align-self: start; }
.absent p { margin: 0; font-weight: 600; }
.table { overflow-x: auto; margin: 0 0 1.4rem; }
table { border-collapse: collapse; font-size: .875rem; }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
th, td {
  text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: break-word;
}
th { color: var(--muted); font-weight: 600; }
td { max-width: 16rem; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
footer { color: var(--muted); font-size: .875rem; border-top: 1px solid var(--line); margin-top: 2rem; }
@media print { .figures { display: block; } figure { break-inside: avoid; margin-bottom: 1rem; } }
"""
