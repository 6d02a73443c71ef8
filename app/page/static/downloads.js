/** Download what a URL holds. @param {string} href @param {string} name The file's name. */
export function download(href, name) {
  Object.assign(document.createElement("a"), { href, download: name }).click();
}
