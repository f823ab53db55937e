;;; pillion.el --- Suggestions and edits from the Pillion daemon  -*- lexical-binding: t; -*-

;; Package-Requires: ((emacs "28.1"))
;; SPDX-License-Identifier: Apache-2.0

;;; Commentary:

;; `pillion-mode' shows what probably comes next as grey text behind point.  TAB takes it,
;; M-RET a line of it, M-<right> a word; any other key goes on.  `pillion-edit-region' changes
;; the region as told, after showing the difference.
;;
;; One `pillion lsp' is started for all buffers; it joins the daemon, or starts one.  What goes to
;; the daemon is the text around point, when it is asked, so nothing has to be kept in step and
;; eglot or lsp-mode can serve the same buffer.

;;; Code:

(require 'diff-mode)
(require 'jsonrpc)
(require 'subr-x)

(defgroup pillion nil "Suggestions from a model on this machine." :group 'tools)

(defcustom pillion-command '("pillion" "lsp")
  "What joins Emacs to the daemon."
  :type '(repeat string))

(defcustom pillion-idle-delay 0.1
  "Seconds without a key before a suggestion is asked for; nil: only when told to."
  :type '(choice number (const nil)))

(defcustom pillion-reach 20000
  "Characters on either side of point that the daemon sees."
  :type 'integer)

(defface pillion-ghost '((t :inherit shadow :slant italic)) "Text that is not in the buffer.")

(defvar pillion--connection nil)
(defvar pillion--asked 0 "Counts requests: an answer to another than the last one is stale.")
(defvar-local pillion--ghost nil "The overlay of the suggestion that is shown.")
(defvar-local pillion--timer nil)

(defun pillion--connect ()
  "The connection; a new one where the last is gone."
  (unless (and pillion--connection (jsonrpc-running-p pillion--connection))
    (let ((program (executable-find (car pillion-command))))
      (unless program
        (user-error "%s is not on the PATH" (car pillion-command)))
      ;; Not in a project's folder, and never a program of a project's.
      (let ((default-directory (expand-file-name "~/")))
        (setq pillion--connection
              (make-instance
               'jsonrpc-process-connection
               :name "pillion"
               :process (lambda ()
                          (make-process :name "pillion"
                                        :command (cons program (cdr pillion-command))
                                        :connection-type 'pipe :coding 'utf-8-emacs-unix
                                        :noquery t :stderr (get-buffer-create " *pillion*"))))))))
  pillion--connection)

(defun pillion--path ()
  "How the daemon calls this file: by its name alone."
  (file-name-nondirectory (or (buffer-file-name) (buffer-name))))

(defun pillion-dismiss ()
  "Take the suggestion from the screen."
  (interactive)
  (when pillion--ghost
    (delete-overlay pillion--ghost)
    (setq pillion--ghost nil)))

(defun pillion--show (text)
  "Show TEXT behind point."
  (pillion-dismiss)
  (unless (string-empty-p text)
    (setq pillion--ghost (make-overlay (point) (point) nil t))
    (let ((shown (propertize text 'face 'pillion-ghost)))
      ;; The cursor stays in front of it.
      (put-text-property 0 1 'cursor t shown)
      (overlay-put pillion--ghost 'pillion-text text)
      (overlay-put pillion--ghost 'after-string shown))))

(defun pillion-complete ()
  "Ask what comes next at point."
  (interactive)
  (setq pillion--asked (1+ pillion--asked))
  (let ((mine pillion--asked) (buffer (current-buffer))
        (at (point)) (tick (buffer-chars-modified-tick)))
    (jsonrpc-async-request
     (pillion--connect) :pillion/complete
     (list :prefix (buffer-substring-no-properties (max (point-min) (- at pillion-reach)) at)
           :suffix (buffer-substring-no-properties at (min (point-max) (+ at pillion-reach)))
           :path (pillion--path))
     :success-fn
     (lambda (result)
       (when (and (= mine pillion--asked) (buffer-live-p buffer))
         (with-current-buffer buffer
           (when (and (= at (point)) (= tick (buffer-chars-modified-tick)))
             (pillion--show (plist-get result :text))))))
     :error-fn #'ignore :timeout-fn #'ignore)))

(defun pillion--accept (length)
  "Insert the first LENGTH characters of the suggestion; what is left stays shown."
  (when-let ((ghost pillion--ghost))
    (let ((text (overlay-get ghost 'pillion-text)))
      (pillion-dismiss)
      (undo-boundary)
      (insert (substring text 0 length))
      (undo-boundary)
      (pillion--show (substring text length)))))

(defun pillion-accept ()
  "Take the whole suggestion."
  (interactive)
  (pillion--accept (length (overlay-get pillion--ghost 'pillion-text))))

(defun pillion--accept-match (regexp)
  "Take what REGEXP matches at the suggestion's beginning."
  (let ((text (overlay-get pillion--ghost 'pillion-text)))
    (string-match regexp text)
    (pillion--accept (max 1 (match-end 0)))))

(defun pillion-accept-line ()
  "Take the next line of the suggestion."
  (interactive)
  (pillion--accept-match "\\`\n*[^\n]*"))

(defun pillion-accept-word ()
  "Take the next word of the suggestion."
  (interactive)
  (pillion--accept-match "\\`[[:space:]\n]*\\(?:[[:alnum:]_]+\\|[^[:alnum:]_[:space:]]+\\)"))

(defvar pillion-shown-map
  (let ((map (make-sparse-keymap)))
    (define-key map (kbd "TAB") #'pillion-accept)
    (define-key map (kbd "<tab>") #'pillion-accept)
    (define-key map (kbd "M-RET") #'pillion-accept-line)
    (define-key map (kbd "M-<right>") #'pillion-accept-word)
    (define-key map (kbd "C-g") #'pillion-dismiss)
    map)
  "Keys while a suggestion is shown.")

(defvar pillion-mode-map
  (let ((map (make-sparse-keymap)))
    (define-key map (kbd "M-\\") #'pillion-complete)
    map))

(add-to-list 'minor-mode-map-alist (cons 'pillion--ghost pillion-shown-map))

(defun pillion--typed-along ()
  "Whether the last command typed what is shown; then the rest is shown."
  (let* ((text (overlay-get pillion--ghost 'pillion-text))
         (from (overlay-start pillion--ghost))
         (typed (and (<= from (point)) (buffer-substring-no-properties from (point)))))
    (when (and typed (string-prefix-p typed text) (not (string-empty-p typed)))
      (pillion--show (substring text (length typed)))
      t)))

(defun pillion--after-command ()
  "Keep what is shown in step with what was typed, or ask anew."
  (unless (or (null this-command)
              (and (symbolp this-command)
                   (string-prefix-p "pillion-" (symbol-name this-command))))
    (when pillion--timer
      (cancel-timer pillion--timer)
      (setq pillion--timer nil))
    (setq pillion--asked (1+ pillion--asked))
    (unless (and pillion--ghost (pillion--typed-along))
      (pillion-dismiss)
      (when (and pillion-idle-delay (not buffer-read-only) (not executing-kbd-macro)
                 (memq this-command '(self-insert-command newline newline-and-indent
                                      delete-backward-char backward-delete-char-untabify)))
        (setq pillion--timer
              (run-with-idle-timer pillion-idle-delay nil
                                   (lambda (buffer)
                                     (when (eq buffer (current-buffer)) (pillion-complete)))
                                   (current-buffer)))))))

;;;###autoload
(define-minor-mode pillion-mode
  "Show what probably comes next behind point."
  :lighter " Pillion" :keymap pillion-mode-map
  (if pillion-mode
      (add-hook 'post-command-hook #'pillion--after-command nil t)
    (remove-hook 'post-command-hook #'pillion--after-command t)
    (pillion-dismiss)))

(defun pillion--edited (hunks old)
  "OLD, a buffer's text, after HUNKS (see docs/PROTOCOL.md)."
  (with-temp-buffer
    (insert old)
    (dolist (hunk (reverse (append hunks nil)))
      (let* ((range (plist-get hunk :range))
             (from (progn (goto-char (point-min))
                          (forward-line (plist-get (plist-get range :start) :line))
                          (point))))
        (delete-region from (+ from (length (plist-get hunk :oldText))))
        (goto-char from)
        (insert (plist-get hunk :newText))))
    (buffer-string)))

;;;###autoload
(defun pillion-edit-region (from till instruction)
  "Change the lines from FROM to TILL as INSTRUCTION says.
The difference is shown first."
  (interactive (list (region-beginning) (region-end) (read-string "Pillion edit: ")))
  (let* ((old (buffer-substring-no-properties (point-min) (point-max)))
         (tick (buffer-chars-modified-tick))
         (first (1- (line-number-at-pos from t)))
         (last (save-excursion
                 (goto-char till)
                 (1- (line-number-at-pos (if (bolp) (1- till) till) t))))
         (result (jsonrpc-request
                  (pillion--connect) :pillion/edit
                  (list :text old :path (pillion--path) :instruction instruction
                        :range (list :start (list :line first :character 0)
                                     :end (list :line (1+ last) :character 0)))
                  :timeout 600))
         (new (pillion--edited (plist-get result :hunks) old)))
    (cond ((string= new old) (message "Pillion: nothing to change"))
          ((not (= tick (buffer-chars-modified-tick)))
           (user-error "The text was changed meanwhile; ask again"))
          ((pillion--confirmed old new)
           (let ((buffer (generate-new-buffer " *pillion new*")))
             (unwind-protect
                 (progn (with-current-buffer buffer (insert new))
                        (replace-buffer-contents buffer))
               (kill-buffer buffer)))))))

(defun pillion--confirmed (old new)
  "Show how NEW differs from OLD and ask."
  (let ((files (list (make-temp-file "old") (make-temp-file "new")))
        (window (current-window-configuration)))
    (unwind-protect
        (progn
          (write-region old nil (car files) nil 'quiet)
          (write-region new nil (cadr files) nil 'quiet)
          (with-current-buffer (get-buffer-create "*pillion edit*")
            (let ((inhibit-read-only t))
              (erase-buffer)
              (call-process "diff" nil t nil "-u" "-L" "now" "-L" "then"
                            (car files) (cadr files))
              (diff-mode)
              (goto-char (point-min)))
            (display-buffer (current-buffer)))
          (y-or-n-p "Apply this? "))
      (mapc #'delete-file files)
      (set-window-configuration window))))

(provide 'pillion)
;;; pillion.el ends here
