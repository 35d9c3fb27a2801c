/* Interactive parts: theme, copy buttons, plots. */

function themeButton() {
  const button = byId("theme"), themes = ["system", "light", "dark"];
  let now = 0;
  button.addEventListener("click", () => {
    now = (now + 1) % themes.length;
    if (now) document.documentElement.dataset.theme = themes[now];
    else delete document.documentElement.dataset.theme;
    button.textContent = `Theme: ${themes[now]}`;
  });
}

/* A table as tab-separated text for spreadsheets, or the text of a code block. */
function textOf(node) {
  if (node.tagName !== "TABLE") return node.textContent;
  return [...node.rows].map((row) => [...row.cells].map((cell) => cell.innerText.trim().replace(/\s+/g, " ")).join("\t")).join("\n");
}

async function copy(button) {
  const node = byId(button.dataset.copy), name = button.textContent;
  try {
    await navigator.clipboard.writeText(textOf(node));
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(node);
    button.textContent = "Selected: press Ctrl+C";
  }
  setTimeout(() => { button.textContent = name; }, 2000);
}

function main() {
  const data = JSON.parse(byId("data").textContent);
  themeButton();
  addEventListener("scroll", hideTip, { passive: true });
  for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => copy(button));
  for (const draw of [distributionPlot, tradeoffPlot, energyPlot, timelinePlot]) draw(data);
}

main();
