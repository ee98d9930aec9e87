// Browsers refuse web workers to pages that are opened as files: the one of the search
// runs in a hidden frame instead, which behaves as a worker towards the page.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<script></script>";
      this.ready = new Promise((resolve) => {
        frame.onload = () => {
          const scope = frame.contentWindow;
          scope.postMessage = (data) =>
            this.dispatchEvent(new MessageEvent("message", { data }));
          scope.importScripts = (...urls) => Promise.all(urls.map((each) => load(scope, each)));
          load(scope, url).then(() => resolve(scope));
        };
      });
      document.body.append(frame);
    }
    postMessage(data) {
      this.ready.then((scope) => scope.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {}
  };
  const load = (scope, url) =>
    new Promise((resolve, reject) => {
      const script = scope.document.createElement("script");
      script.src = url;
      script.onload = resolve;
      script.onerror = reject;
      scope.document.body.append(script);
    });
}
