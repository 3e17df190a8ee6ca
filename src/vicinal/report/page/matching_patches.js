// Why two images match: lines between their matching patches. The page of the service draws them with it too.
const HALF = 100; // side of each image, see the view box
const SECOND = 108; // left edge of the second one

// Draw into an SVG element of 208 x 100. `patches` are lists of x and y in the first image, x and y in the second, from 0
// to 1 within the square in the middle that was compared, and the similarity; `square` is that square as a fraction of
// the shorter side.
function drawMatchingPatches(drawing, first, second, patches, square) {
  const made = (tag, attributes) => {
    const one = document.createElementNS(drawing.namespaceURI, tag);
    for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
    return one;
  };
  const half = (address, left) => { // the square in the middle of an image
    const side = HALF / square;
    const edge = (HALF - side) / 2;
    const one = made("svg", { x: left, y: 0, width: HALF, height: HALF });
    one.append(made("image", {
      href: address, x: edge, y: edge, width: side, height: side, preserveAspectRatio: "xMidYMid slice",
    }));
    return one;
  };
  const lines = patches.map(([x, y, otherX, otherY, similarity]) => made("line", {
    x1: HALF * x, y1: HALF * y, x2: SECOND + HALF * otherX, y2: HALF * otherY,
    opacity: Math.min(1, 0.25 + 0.7 * similarity),
  }));
  drawing.replaceChildren(half(first, 0), half(second, SECOND), ...lines);
}
