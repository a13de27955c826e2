//! A calculator: text to tokens, tokens to a tree, the tree to a number.
use std::collections::HashMap;
use std::fmt::{self, Display};
use std::iter::Peekable;
use std::str::Chars;

/// What can go wrong, and where.
#[derive(Debug, Clone, PartialEq)]
pub enum Problem {
    Unexpected { found: char, at: usize },
    UnknownName(String),
    EndOfText,
    DivisionByZero,
}

impl Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Unexpected { found, at } => write!(out, "unexpected {found:?} at {at}"),
            Problem::UnknownName(name) => write!(out, "nothing is called `{}`", name),
            Problem::EndOfText => out.write_str("the text ends too early"),
            Problem::DivisionByZero => out.write_str("division by zero"),
        }
    }
}

impl std::error::Error for Problem {}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Number(f64),
    Name(String),
    Sign(char),
}

struct Lexer<'a> {
    chars: Peekable<Chars<'a>>,
    at: usize,
}

impl<'a> Lexer<'a> {
    fn new(text: &'a str) -> Self {
        Lexer { chars: text.chars().peekable(), at: 0 }
    }

    fn take_while<F: Fn(char) -> bool>(&mut self, accept: F) -> String {
        let mut taken = String::new();
        while let Some(&next) = self.chars.peek() {
            if !accept(next) {
                break;
            }
            taken.push(next);
            self.chars.next();
            self.at += 1;
        }
        taken
    }
}

impl<'a> Iterator for Lexer<'a> {
    type Item = Result<Token, Problem>;

    fn next(&mut self) -> Option<Self::Item> {
        self.take_while(char::is_whitespace);
        let first = *self.chars.peek()?;
        Some(match first {
            '0'..='9' | '.' => {
                let digits = self.take_while(|c| c.is_ascii_digit() || c == '.');
                digits.parse().map(Token::Number).map_err(|_| Problem::Unexpected { found: '.', at: self.at })
            }
            'a'..='z' | 'A'..='Z' | '_' => Ok(Token::Name(self.take_while(|c| c.is_alphanumeric() || c == '_'))),
            '+' | '-' | '*' | '/' | '(' | ')' | '^' => {
                self.chars.next();
                self.at += 1;
                Ok(Token::Sign(first))
            }
            other => Err(Problem::Unexpected { found: other, at: self.at }),
        })
    }
}

#[derive(Debug)]
pub enum Tree {
    Number(f64),
    Name(String),
    Both(Box<Tree>, char, Box<Tree>),
    Minus(Box<Tree>),
}

pub struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    pub fn parse(text: &str) -> Result<Tree, Problem> {
        let tokens = Lexer::new(text).collect::<Result<Vec<_>, _>>()?;
        let mut parser = Parser { tokens, at: 0 };
        let tree = parser.sum(0)?;
        if parser.at < parser.tokens.len() {
            return Err(Problem::Unexpected { found: '?', at: parser.at });
        }
        Ok(tree)
    }

    const fn strength(sign: char) -> u8 {
        match sign {
            '+' | '-' => 1,
            '*' | '/' => 2,
            '^' => 3,
            _ => 0,
        }
    }

    fn sum(&mut self, least: u8) -> Result<Tree, Problem> {
        let mut left = self.single()?;
        while let Some(Token::Sign(sign)) = self.tokens.get(self.at).cloned() {
            let strength = Self::strength(sign);
            if strength == 0 || strength < least {
                break;
            }
            self.at += 1;
            let right = self.sum(strength + u8::from(sign != '^'))?;
            left = Tree::Both(Box::new(left), sign, Box::new(right));
        }
        Ok(left)
    }

    fn single(&mut self) -> Result<Tree, Problem> {
        let token = self.tokens.get(self.at).cloned().ok_or(Problem::EndOfText)?;
        self.at += 1;
        match token {
            Token::Number(value) => Ok(Tree::Number(value)),
            Token::Name(name) => Ok(Tree::Name(name)),
            Token::Sign('-') => Ok(Tree::Minus(Box::new(self.sum(2)?))),
            Token::Sign('(') => {
                let inner = self.sum(0)?;
                self.at += 1; // the closing bracket
                Ok(inner)
            }
            Token::Sign(found) => Err(Problem::Unexpected { found, at: self.at - 1 }),
        }
    }
}

pub fn evaluate(tree: &Tree, names: &HashMap<String, f64>) -> Result<f64, Problem> {
    Ok(match tree {
        Tree::Number(value) => *value,
        Tree::Name(name) => *names.get(name).ok_or_else(|| Problem::UnknownName(name.clone()))?,
        Tree::Minus(inner) => -evaluate(inner, names)?,
        Tree::Both(left, sign, right) => {
            let (left, right) = (evaluate(left, names)?, evaluate(right, names)?);
            match sign {
                '+' => left + right,
                '-' => left - right,
                '*' => left * right,
                '/' if right == 0.0 => return Err(Problem::DivisionByZero),
                '/' => left / right,
                _ => left.powf(right),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Result<f64, Problem> {
        let names = HashMap::from([("pi".to_string(), 3.14), ("two".to_string(), 2.0)]);
        evaluate(&Parser::parse(text)?, &names)
    }

    #[test]
    fn precedence() {
        assert_eq!(value("1 + 2 * 3"), Ok(7.0));
        assert_eq!(value("-(1 + 2) ^ two"), Ok(-9.0), "the power binds {}", "first");
        let many: Vec<_> = (1..=3).map(|n| value(&format!("{n} / 2"))).collect();
        assert_eq!(many, vec![Ok(0.5), Ok(1.0), Ok(1.5)]);
    }
}
