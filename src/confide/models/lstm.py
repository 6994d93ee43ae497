"""The papers' LSTM as an ordinary Hugging Face model: token ids come in, hidden states, logits and text go out.

`import confide.models` makes AutoConfig, AutoModel and AutoModelForCausalLM know it.
"""

# mypy: disable-error-code="no-untyped-call"
# (transformers' base classes have no types)

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from ..errors import BadInput

init: ModuleType = nn.init
with contextlib.suppress(ImportError):  # transformers 5: these leave weights alone that came from a file
    from transformers import initialization as init


class LstmConfig(PretrainedConfig):
    """The shape of the LSTM; the defaults are the papers', one layer of 200.

    The LSTM itself has no longest input: `max_position_embeddings` is only what others may ask a model for.
    """

    model_type = "confide-lstm"

    def __init__(
        self,
        vocab_size: int = 8192,
        embedding_size: int = 200,
        hidden_size: int = 200,
        num_hidden_layers: int = 1,
        dropout: float = 0.0,
        tie_word_embeddings: bool = True,
        max_position_embeddings: int = 1024,
        initializer_range: float = 0.1,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        pad_token_id: int | None = None,
        **kwargs: Any,
    ) -> None:
        for name, size in (
            ("vocab_size", vocab_size),
            ("embedding_size", embedding_size),
            ("hidden_size", hidden_size),
            ("num_hidden_layers", num_hidden_layers),
        ):
            if not isinstance(size, int) or size < 1:
                raise BadInput(f"LSTM: {name} must be a positive whole number, got {size!r}")
        if not 0 <= dropout < 1:
            raise BadInput(f"LSTM: dropout must be at least 0 and below 1, got {dropout!r}")
        if tie_word_embeddings and embedding_size != hidden_size:
            raise BadInput(
                f"LSTM: embedding_size {embedding_size} and hidden_size {hidden_size} differ, so that the head cannot share the "
                "embedding's weights; make them equal or set tie_word_embeddings=False"
            )
        self.vocab_size, self.embedding_size, self.hidden_size = vocab_size, embedding_size, hidden_size
        self.num_hidden_layers, self.dropout = num_hidden_layers, dropout
        self.max_position_embeddings, self.initializer_range = max_position_embeddings, initializer_range
        super().__init__(**kwargs)
        self.bos_token_id, self.eos_token_id, self.pad_token_id = bos_token_id, eos_token_id, pad_token_id
        self.tie_word_embeddings = tie_word_embeddings


@dataclass
class LstmState:
    """What the LSTM remembers of the positions that it has seen, each [layers, batch, hidden]; `generate` calls it a cache."""

    h: Tensor
    c: Tensor
    length: int  # positions seen, padding among them

    is_compileable = False
    is_croppable = False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Beam search goes on with these rows."""
        self.h, self.c = self.h.index_select(1, beam_idx), self.c.index_select(1, beam_idx)


class LstmPreTrainedModel(PreTrainedModel):
    config_class = LstmConfig
    base_model_prefix = "model"
    _is_stateful = True  # a position cannot be taken back, which assisted generation would want

    def _init_weights(self, module: nn.Module) -> None:
        """As in the papers' code: a uniform embedding, and torch's own range for the recurrence."""
        if isinstance(module, nn.LSTM):
            for parameter in module.parameters():
                init.uniform_(parameter, -(module.hidden_size**-0.5), module.hidden_size**-0.5)
        elif isinstance(module, (nn.Embedding, nn.Linear)):
            init.uniform_(module.weight, -self.config.initializer_range, self.config.initializer_range)
            if isinstance(module, nn.Linear):
                init.zeros_(module.bias)


class LstmModel(LstmPreTrainedModel):
    """Embedding and LSTM, without the head. State never crosses records: it starts at zero unless a state is given."""

    def __init__(self, config: LstmConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.embedding_size)
        self.lstm = nn.LSTM(
            config.embedding_size,
            config.hidden_size,
            config.num_hidden_layers,
            batch_first=True,
            dropout=config.dropout if config.num_hidden_layers > 1 else 0.0,
        )
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embed_tokens = value  # type: ignore[assignment]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: LstmState | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        **_: Any,
    ) -> BaseModelOutputWithPast | tuple[Any, ...]:
        """Hidden states [B, T, H], and with `use_cache` the state after the last position that the mask leaves."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        embedded = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        embedded, start = self.dropout(embedded), None
        if past_key_values is not None:
            start = past_key_values.h, past_key_values.c
        mask = None if attention_mask is None else attention_mask[:, -embedded.shape[1] :].bool()
        hidden, (h, c) = self._run(embedded, mask, start, state_matters=bool(use_cache))
        state = None
        if use_cache:
            state = LstmState(h, c, embedded.shape[1] + (past_key_values.length if past_key_values else 0))
        hidden = self.dropout(hidden)
        output = BaseModelOutputWithPast(last_hidden_state=hidden, past_key_values=state)  # type: ignore[arg-type]
        return output.to_tuple() if return_dict is False else output

    def _run(
        self, embedded: Tensor, mask: Tensor | None, start: tuple[Tensor, Tensor] | None, *, state_matters: bool
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The LSTM over the positions of the mask; others leave the state as it is, and what they yield means nothing.

        Padding at the end reaches no real position and needs no care unless the last state is wanted. For other padding
        each row's real positions are moved to the front, in their order, and back again afterwards; what stands between
        them has then seen the positions after it, and is zeroed.
        """
        if mask is None or bool(mask.all()):
            return self.lstm(embedded, start)  # type: ignore[no-any-return]
        at_the_end = not bool((mask[:, 1:] & ~mask[:, :-1]).any())
        order = None if at_the_end else torch.argsort((~mask).long(), dim=1, stable=True)
        if order is not None:
            embedded = embedded.gather(1, order[:, :, None].expand_as(embedded))
        if state_matters:
            hidden, end = self._run_packed(embedded, mask.sum(1), start)
        else:
            hidden, end = self.lstm(embedded, start)
        if order is not None:
            hidden = hidden.gather(1, order.argsort(1)[:, :, None].expand_as(hidden)).masked_fill(
                ~mask[:, :, None], 0.0
            )
        return hidden, end

    def _run_packed(
        self, embedded: Tensor, lengths: Tensor, start: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The LSTM over the first positions of each row; a row without any keeps its state."""
        known = lengths.clamp_min(1).cpu()  # every row must have a position
        packed = pack_padded_sequence(embedded, known, batch_first=True, enforce_sorted=False)
        outputs, (h, c) = self.lstm(packed, start)
        hidden, _ = pad_packed_sequence(outputs, batch_first=True, total_length=embedded.shape[1])
        before = start or (torch.zeros_like(h), torch.zeros_like(c))
        seen = (lengths > 0)[None, :, None]
        return hidden, (torch.where(seen, h, before[0]), torch.where(seen, c, before[1]))


class LstmForCausalLM(LstmPreTrainedModel, GenerationMixin):
    """The LSTM with a linear head, tied to the embedding unless the configuration says otherwise."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012 (transformers' name and type)

    def __init__(self, config: LstmConfig) -> None:
        super().__init__(config)
        self.model = LstmModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self) -> Any:
        return self.model.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.embed_tokens = value

    def get_output_embeddings(self) -> Any:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head = value

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the state is made by the first forward pass; a cache of keys and values has no place for it

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: LstmState | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **_: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits [B, T, V], of the last `logits_to_keep` positions if given; the loss if there are labels, as in GPT-2."""
        body = self.model(input_ids, attention_mask, past_key_values, inputs_embeds, use_cache)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(body[0][:, kept])
        loss: Any = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=body.past_key_values)
        return output.to_tuple() if return_dict is False else output
