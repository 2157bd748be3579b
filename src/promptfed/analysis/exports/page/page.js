"use strict";

const find = id => document.getElementById(id);
const say = sentence => { find("said").textContent = sentence; };
const MISSING = "ort.wasm.min.js is missing: copy the three files that README.md names into this folder.";

// The photograph as RGB bytes, upright and on white where it is transparent.
async function pixelsOf(file) {
  const bitmap = await createImageBitmap(file, { imageOrientation: "from-image", colorSpaceConversion: "none" });
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
  const context = canvas.getContext("2d");
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0);
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  const rgb = new Uint8ClampedArray(canvas.width * canvas.height * 3);
  for (let from = 0, to = 0; from < data.length; from += 4) {
    rgb[to++] = data[from];
    rgb[to++] = data[from + 1];
    rgb[to++] = data[from + 2];
  }
  return { rgb, rows: canvas.height, columns: canvas.width };
}

// The probability of every class, in the order of the classes.
async function classify(model, file) {
  const [, height, width] = model.about.images.shape;
  const { rgb, rows, columns } = await pixelsOf(file);
  const bytes = new Uint8Array(resize(rgb, rows, columns, height, width).buffer);
  const images = new ort.Tensor("uint8", bytes, [1, height, width, 3]);
  return Array.from((await model.session.run({ images })).probabilities.data);
}

function show(classes, probabilities) {
  const rows = classes.map((name, number) => ({ name, p: probabilities[number] })).sort((a, b) => b.p - a.p);
  find("answers").tBodies[0].replaceChildren(...rows.map(({ name, p }) => {
    const row = document.createElement("tr");
    row.insertCell().textContent = name;
    row.insertCell().textContent = `${(100 * p).toFixed(1)} %`;
    return row;
  }));
  find("answers").hidden = false;
}

async function load() {
  if (typeof ort === "undefined") throw new Error(MISSING);
  ort.env.wasm.numThreads = 1; // more of them need headers that not every server sends
  ort.env.logLevel = "error";
  const about = await (await fetch("model.json")).json();
  const session = await ort.InferenceSession.create("model.onnx", { executionProviders: ["wasm"], logSeverityLevel: 3 });
  return { about, session };
}

async function start() {
  const model = await load();
  const clients = Object.entries(model.about.clients).map(([number, { name }]) => name || `client ${number}`);
  find("about").textContent = `The model is that of ${clients.join(", ")}, trained with ${model.about.method.name}.`;
  find("photo").addEventListener("change", async ({ target }) => {
    const [file] = target.files;
    if (!file) return;
    say("Classifying …");
    try {
      const probabilities = await classify(model, file);
      URL.revokeObjectURL(find("shown").src);
      find("shown").src = URL.createObjectURL(file);
      find("shown").hidden = false;
      show(model.about.classes, probabilities);
      say("");
    } catch {
      find("answers").hidden = find("shown").hidden = true;
      say(`The browser cannot read ${file.name} as a photograph.`);
    }
  });
  find("photo").disabled = false;
  say("Choose a photograph.");
  return model;
}

const ready = start();
ready.catch(error => say(`The model cannot be loaded. ${error.message}`));
