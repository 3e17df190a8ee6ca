// A picture that is chosen, shrunk before it is sent: no model sees more pixels.
const MAX_SIDE = 1600;
const QUALITY = 0.92;

// The file as it is sent, and its size upright; `width` is null where the browser cannot show the picture.
export async function readPicture(file) {
  const name = file.name || "picture";
  let bitmap;
  try {
    bitmap = await createImageBitmap(file); // turned upright as its EXIF data say
  } catch {
    return { name, blob: file, url: null, width: null, height: null };
  }
  const { width, height } = bitmap;
  const blob = Math.max(width, height) > MAX_SIDE ? await shrink(bitmap) : file;
  const scale = blob === file ? 1 : MAX_SIDE / Math.max(width, height);
  bitmap.close();
  return { name, blob, url: URL.createObjectURL(blob), ...scaled(width, height, scale) };
}

function scaled(width, height, scale) {
  return { width: Math.max(1, Math.round(width * scale)), height: Math.max(1, Math.round(height * scale)) };
}

async function shrink(bitmap) {
  const size = scaled(bitmap.width, bitmap.height, MAX_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = Object.assign(document.createElement("canvas"), size);
  const context = canvas.getContext("2d");
  context.fillStyle = "#ffffff"; // below transparent pixels, as on the server
  context.fillRect(0, 0, size.width, size.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, size.width, size.height);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", QUALITY));
  if (blob === null) throw new Error("The picture could not be made smaller.");
  return blob;
}

// The first dropped or pasted picture, or null.
export function pictureIn(transfer) {
  const files = [...(transfer?.files ?? [])];
  return files.find((file) => file.type.startsWith("image/")) ?? files[0] ?? null;
}
