// An edit box takes the place of its message.
const MESSAGES = "[data-testid=user] .chatbot, [data-testid=bot] .chatbot, textarea";

/** The messages of gr.Chatbot as texts; Gradio replaces their elements while they stream. */
export class ChatText {
  constructor(chat) {
    this.chat = chat;
    this.read();
  }

  /** Read the messages again; call this after each change of the chat. */
  read() {
    this.messages = [...this.chat.querySelectorAll(MESSAGES)].map((element) => {
      const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
      const nodes = [];
      let text = "";
      while (walker.nextNode()) {
        nodes.push({ node: walker.currentNode, begin: text.length });
        text += walker.currentNode.data;
      }
      return { element, nodes, text };
    });
  }

  /** True if the page shows a word at its position; it may show it later. */
  shows({ message, begin, text }) {
    return this.messages[message]?.text.startsWith(text, begin) ?? false;
  }

  /** The first `most` messages that have none of these words; each as one word. */
  without(words, most) {
    const known = new Set(words.map(({ message }) => message));
    const whole = this.messages.map(({ text }, message) => ({ message, begin: 0, text }));
    return whole.slice(0, most).filter(({ message, text }) => text.trim() && !known.has(message));
  }

  /** The range from one word to another one of the same message. */
  range(first, last = first) {
    const message = this.messages[first.message];
    const range = new Range();
    range.setStart(...at(message, first.begin));
    range.setEnd(...at(message, last.begin + last.text.length));
    return range;
  }

  /** The parts of messages in a range, such as the page's selection. */
  parts(range) {
    return this.messages.flatMap(({ nodes }, message) => {
      const inside = nodes.filter(({ node }) => range.intersectsNode(node));
      if (!inside.length) return [];
      const [first, last] = [inside[0], inside.at(-1)];
      const begin = first.node === range.startContainer ? range.startOffset : 0;
      const end = last.node === range.endContainer ? range.endOffset : last.node.length;
      return [{ message, begin: first.begin + begin, end: last.begin + end }];
    });
  }

  /** The message and the offset of the letter at a point of the window, if there is one. */
  at(x, y) {
    const caret = document.caretPositionFromPoint?.(x, y);
    const range = document.caretRangeFromPoint?.(x, y);
    const [node, offset] = caret
      ? [caret.offsetNode, caret.offset]
      : [range?.startContainer, range?.startOffset];
    const message = this.messages.findIndex(({ element }) => element.contains(node ?? null));
    const found = this.messages[message]?.nodes.find((text) => text.node === node);
    // the caret is before or after the letter
    const letter = found && [offset, offset - 1].find((at) => covers(node, at, x, y));
    return letter === undefined ? null : { message, offset: found.begin + letter };
  }

  /** Scroll the chat, and nothing else, to a range. */
  show(range) {
    const log = this.chat.querySelector("[role=log]");
    const [box, frame] = [range, log].map((of) => of.getBoundingClientRect());
    if (box.top < frame.top) log.scrollTop += box.top - frame.top - 8;
    else if (box.bottom > frame.bottom) log.scrollTop += box.bottom - frame.bottom + 8;
  }
}

/** The node at an offset of a message, and the offset in the node. */
function at({ nodes }, offset) {
  const { node, begin } = nodes.findLast((text) => text.begin <= offset);
  return [node, Math.min(offset - begin, node.length)];
}

function covers(node, offset, x, y) {
  if (offset < 0 || offset >= node.length) return false;
  const letter = new Range();
  letter.setStart(node, offset);
  letter.setEnd(node, offset + 1);
  const inside = (box) => x >= box.left && x <= box.right && y >= box.top && y <= box.bottom;
  return [...letter.getClientRects()].some(inside);
}
