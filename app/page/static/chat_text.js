const MESSAGES = "[data-testid=user] .chatbot, [data-testid=bot] .chatbot";

/** The messages of gr.Chatbot as texts, whose elements it makes anew while they stream. */
export class ChatText {
  constructor(chat) {
    this.chat = chat;
    this.read();
  }

  /** Read the messages; after each change of the chat. */
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

  /** True if a word is where it should be: the page may show it later, or something else there. */
  shows({ message, begin, text }) {
    return this.messages[message]?.text.startsWith(text, begin) ?? false;
  }

  /** The first messages, so many, that have none of these words; each as one word. */
  without(words, most) {
    const known = new Set(words.map(({ message }) => message));
    const whole = this.messages.map(({ text }, message) => ({ message, begin: 0, text }));
    return whole.slice(0, most).filter(({ message, text }) => text.trim() && !known.has(message));
  }

  /** The range from one word to another one of the same message, both of which it shows. */
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

  /** The message and the place in it of the letter at a point of the window, if there is one. */
  at(x, y) {
    const caret = document.caretPositionFromPoint?.(x, y);
    const range = document.caretRangeFromPoint?.(x, y);
    const [node, offset] = caret
      ? [caret.offsetNode, caret.offset]
      : [range?.startContainer, range?.startOffset];
    const message = this.messages.findIndex(({ element }) => element.contains(node ?? null));
    const found = this.messages[message]?.nodes.find((text) => text.node === node);
    // the caret is before or behind the letter
    const letter = found && [offset, offset - 1].find((place) => covers(node, place, x, y));
    return letter === undefined ? null : { message, place: found.begin + letter };
  }

  /** Scroll the chat, and nothing else, until a range is in sight. */
  show(range) {
    const log = this.chat.querySelector("[role=log]");
    const [box, frame] = [range, log].map((of) => of.getBoundingClientRect());
    if (box.top < frame.top) log.scrollTop += box.top - frame.top - 8;
    else if (box.bottom > frame.bottom) log.scrollTop += box.bottom - frame.bottom + 8;
  }
}

/** The node of a place in a message, and the offset in it. */
function at({ nodes }, place) {
  const { node, begin } = nodes.findLast((text) => text.begin <= place);
  return [node, Math.min(place - begin, node.length)];
}

function covers(node, offset, x, y) {
  if (offset < 0 || offset >= node.length) return false;
  const letter = new Range();
  letter.setStart(node, offset);
  letter.setEnd(node, offset + 1);
  const inside = (box) => x >= box.left && x <= box.right && y >= box.top && y <= box.bottom;
  return [...letter.getClientRects()].some(inside);
}
