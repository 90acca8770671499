// Search and filters of the matrix. Without scripts the page shows every clause, and the form stays hidden.
const form = document.getElementById("filters");
const search = document.getElementById("search");
const rows = [...document.querySelectorAll("tr[data-clause]")];
const folded = new Map([...document.querySelectorAll("details.section")].map((group) => [group, group.open]));

function filter() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const allowed = new Set([...form.querySelectorAll("input:checked")].map((box) => box.value));
  const narrowed = words.length || form.querySelector("input[type=checkbox]:not(:checked)");
  for (const row of rows) {
    const text = row.querySelector(".clause").textContent.toLowerCase();
    row.hidden = !allowed.has(row.dataset.status) || !words.every((word) => text.includes(word));
  }
  for (const [group, open] of folded) {
    group.hidden = !group.querySelector("tr[data-clause]:not([hidden])");
    group.open = narrowed ? true : open;
  }
  const shown = rows.filter((row) => !row.hidden).length;
  document.getElementById("shown").textContent = narrowed ? `${shown} of ${rows.length} clauses` : "";
}

form.hidden = false;
form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());

// What a link leads to is shown and opened, with all that it is folded in.
function reveal() {
  const target = document.getElementById(location.hash.slice(1));
  if (!target) return;
  for (let one = target; one; one = one.parentElement) {
    one.hidden = false;
    if (one instanceof HTMLDetailsElement) one.open = true;
  }
  if (target.dataset.clause) target.querySelector("details").open = true;
  target.scrollIntoView({ block: "center" });
}

addEventListener("hashchange", reveal);
reveal();
