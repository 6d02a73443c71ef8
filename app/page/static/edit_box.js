// Gradio shows messages as HTML, so they are escaped; its edit box takes them as they are.
() => new MutationObserver(() => {
  for (const box of document.querySelectorAll("#chat textarea:not([data-plain])")) {
    box.dataset.plain = "";
    const signs = [["&lt;", "<"], ["&gt;", ">"], ["&amp;", "&"]];
    box.value = signs.reduce((text, [from, to]) => text.replaceAll(from, to), box.value);
    box.dispatchEvent(new Event("input"));
  }
}).observe(document.querySelector("#chat"), { childList: true, subtree: true })
