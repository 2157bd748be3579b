// A click on a heading sorts the table by that column; a second click turns the order round.
document.addEventListener("click", (event) => {
  const head = event.target.closest(".sortable th");
  if (!head) return;
  const body = head.closest("table").tBodies[0];
  const column = [...head.parentElement.children].indexOf(head);
  const number = (row) => parseFloat(row.cells[column].textContent.replaceAll(",", ""));
  const text = (row) => row.cells[column].textContent;
  const rows = [...body.rows];
  const numeric = rows.some((row) => !Number.isNaN(number(row)));
  const down = head.dataset.order ? head.dataset.order === "up" : numeric;
  for (const other of head.parentElement.children) delete other.dataset.order;
  head.dataset.order = down ? "down" : "up";
  const order = numeric
    ? (one, other) => (down ? number(other) - number(one) : number(one) - number(other))
    : (one, other) => (down ? text(other).localeCompare(text(one)) : text(one).localeCompare(text(other)));
  const empty = (row) => numeric && Number.isNaN(number(row)); // a cell without a number stays at the end
  rows.sort((one, other) => empty(one) - empty(other) || (empty(one) ? 0 : order(one, other)));
  body.append(...rows);
});
