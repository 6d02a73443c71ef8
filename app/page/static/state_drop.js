const LARGEST = 180_000; // bytes of a file that is sent

/** Send a file that is dropped or chosen in `element` as [name, size, base64]. */
export function attach(element, props, trigger) {
  const send = async (file) => {
    if (!file) return;
    const bytes = file.size > LARGEST ? [] : new Uint8Array(await file.arrayBuffer());
    const text = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
    props.value = [file.name, file.size, btoa(text)];
    trigger("input"); // a change would not tell of the same file
  };
  element.addEventListener("dragover", (event) => event.preventDefault());
  element.addEventListener("drop", (event) => {
    event.preventDefault();
    send(event.dataTransfer.files[0]);
  });
  element.addEventListener("change", ({ target }) => {
    send(target.files?.[0]);
    target.value = ""; // the same file may be chosen again
  });
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault(); // a space would scroll
    element.querySelector("input").click();
  });
}
